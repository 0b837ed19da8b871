"""`upwell cases`: look at what devices have collected, choose, export, label and forget."""
