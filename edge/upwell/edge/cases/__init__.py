"""Cases: rows that are kept with their pictures and answers, to be labelled, trained with and evaluated by."""
