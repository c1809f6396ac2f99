"""Python sessions: the half that runs in the user's interpreter. Only this folder of execd can be
imported there."""
