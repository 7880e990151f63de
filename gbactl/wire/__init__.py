"""Wire between processes: frames, messages, channels and hubs, authentication, reliable delivery, half precision."""
