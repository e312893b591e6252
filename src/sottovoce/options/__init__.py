"""Every option, declared once for Python, the command line, the server and docs; imports nothing heavy."""
