"""What can be launched: the moves of a campaign as forms, and the assets as jobs. A form's fields have types and say what they
mean; a person's name is always asked for where something is ordered.
"""
