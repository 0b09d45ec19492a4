# Made by `python tools/cluster_conf.py` from tests/support/brokers/; do not edit.
exec bin/pulsar initialize-cluster-metadata \
  --cluster \
  local \
  --metadata-store \
  zk:127.0.0.1:2181 \
  --configuration-metadata-store \
  zk:127.0.0.1:2181 \
  --web-service-url \
  http://127.0.0.1:8080,127.0.0.1:8081 \
  --broker-service-url \
  pulsar://127.0.0.1:6650,127.0.0.1:6651 \
  --initial-num-stream-storage-containers \
  0
