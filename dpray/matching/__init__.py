"""A small set of images, learnt so that networks see in it what they see in the private records.

Gradient matching (Zhao et al. 2021) as Private Set Generation uses it. But for the one query in
`loop.py` everything here works on synthetic images and on gradients that are noisy already: it
reads no private record and is post-processing.
"""
