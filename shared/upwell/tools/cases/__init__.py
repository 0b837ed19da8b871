"""`upwell cases`: view, select, export, label and erase what devices have collected."""
