"""Cases: rows stored with their inputs and answers, for labelling, training and evaluation."""
