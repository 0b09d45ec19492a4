"""Health check of the image: 0 if the page at PULSAR_RETRY_HEALTH_URL answers with 2xx."""

import os
import sys
import urllib.request

url = os.environ.get("PULSAR_RETRY_HEALTH_URL", "http://127.0.0.1:9464/livez")
# No proxy of the environment leads to this container.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    with opener.open(url, timeout=5) as answer:
        print(answer.status)
except OSError as error:
    sys.exit(f"{url}: {error}")
