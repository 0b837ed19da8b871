"""`upwell infer`."""
