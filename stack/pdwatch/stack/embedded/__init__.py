"""The embedded PD deployment: engine, model, faults and the SGLang protocol around them."""
