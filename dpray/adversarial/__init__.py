"""Adversarial training under privacy: the critic asks, the generator only hears the critic.

`losses` says what both want, `critic` takes the critic's gradient (the one place that reads
private records, through `noisy_gradient`), `duel` is the loop. Generators and critics may be over
images or over latents.
"""
