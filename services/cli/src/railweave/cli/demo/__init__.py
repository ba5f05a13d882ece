"""`railweave demo`: the main job from nothing, told step by step, with every claim checked."""
