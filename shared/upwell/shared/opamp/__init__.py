"""What agent and fleet service agree on beyond the Open Agent Management Protocol (OpAMP) itself."""
