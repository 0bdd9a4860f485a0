"""Pure decisions: values in, values out; no IO, no clock, no chance."""
