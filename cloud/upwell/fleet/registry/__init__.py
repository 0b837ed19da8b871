"""The devices: their last reports, their groups, and the release that each is to run."""
