"""Many live sessions on one model: what their generators ask for, put together and done."""
