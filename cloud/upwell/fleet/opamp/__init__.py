"""The Open Agent Management Protocol (OpAMP) over plain HTTP, the server's side."""
