"""The server: OpenAI's API for recordings, live sockets, and a web page, over the models of the library."""
