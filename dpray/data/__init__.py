"""Datasets: fetched and checked, or the user's own, and how they are split and shared out.

`datasets.load` is the door. This file imports nothing, so `data.records` stays light.
"""
