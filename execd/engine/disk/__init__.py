"""The disk guard: full directories cost the command that fills them, and not the pod."""
