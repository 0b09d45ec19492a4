from pulsar_retry.pull.delivery import Delivery as Delivery
from pulsar_retry.pull.health import Health as Health
from pulsar_retry.pull.report import Report as Report
from pulsar_retry.pull.rules.breaker import Breaker as Breaker
from pulsar_retry.pull.rules.flow import FlowControl as FlowControl
from pulsar_retry.pull.rules.lanes import Lanes as Lanes
from pulsar_retry.pull.rules.lease import Lease as Lease
from pulsar_retry.pull.subscriber import Subscriber as Subscriber
