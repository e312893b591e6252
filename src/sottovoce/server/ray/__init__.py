"""Beyond one machine: the server as replicas (Ray Serve), archives over many actors (Ray Data)."""
