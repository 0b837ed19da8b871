"""The flow of one request: who is asked, who is waited for, and what stands in for whom. Pure; time is an argument."""
