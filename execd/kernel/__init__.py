"""Python sessions: the half that runs in the user's interpreter. Nothing else of execd can be
imported there."""
