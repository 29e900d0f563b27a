"""The main job: a year of real flights through every package."""
