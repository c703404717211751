"""Waves and warm-up: an audience that goes out in parts, those first who read most, each part only when the one before went well.

`ramp` knows how many mails a day a sending domain may grow to, `domain` how many it sends, `spec` what a campaign file says;
`layout` makes days and waves of numbers of people, `assign` lets a snapshot follow that, `gate` judges a part, `standing` tells
where all of them are, and `advance` lets the next one go.
"""
