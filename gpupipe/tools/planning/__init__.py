"""What a run will fetch from storage, walked through before it: `gpupipe plan`."""
