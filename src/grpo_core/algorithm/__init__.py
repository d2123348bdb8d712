"""Pure tensor maths: objective, advantages, losses, KL, penalty. No files, no models, no config."""
