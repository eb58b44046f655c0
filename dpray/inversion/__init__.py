"""Model inversion: private records as latents of a model that was trained on public images.

What is here is public, or record-local: public models are trained on public images and kept,
and the latents of a record are a function of that record and of public numbers. Nothing is
noised here; latents are as private as the images they stand for.
"""
