"""What agent and fleet service share beyond the Open Agent Management Protocol (OpAMP) itself."""
