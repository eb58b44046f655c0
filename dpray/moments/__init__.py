"""Mixtures of Gaussians from noisy moments of classes and of their cells, in noisy directions.

Four sums over all records, each of which makes the next one quieter: the mean image; the second
moment of what images have beside it, whose leading directions span a subspace (`subspace`); the
moments of every class; and those of every cell of a class (`slots`). What noise alone explains is
taken back (`shrinkage`), and what an image loses where it is cut off at black and white is made up
for (`clamping`). `dp-moments` releases such mixtures (`mixture`), `dp-match` starts from their
draws.
"""
