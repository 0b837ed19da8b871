"""The flow of one request: which side is asked, waited for and used instead of the other. Pure; time is an argument."""
