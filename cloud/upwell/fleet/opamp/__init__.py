"""The server side of the Open Agent Management Protocol (OpAMP) over plain HTTP."""
