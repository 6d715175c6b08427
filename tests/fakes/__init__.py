"""Hand-written stand-ins for what this machine may not have."""
