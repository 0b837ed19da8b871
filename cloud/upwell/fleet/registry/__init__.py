"""The devices: what they said last, the groups that they are in, the release that each is to run."""
