import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * The Java client, to be told what to do by a test.
 *
 * <p>A line of JSON in is an order, `{"do": …}`; a line of JSON out is its answer, `{"is": …}` or
 * `{"error": …}`. It ends when its input does. Bytes travel in base64. What a test does not say,
 * Java's own defaults say, but for the position (Earliest), the delay of a nack (100 ms), and that
 * each acknowledgement is sent at once.
 */
public class Interop {
    /** What the schema tests send. */
    public static class Order {
        public String item;
        public Integer amount;
    }

    private static final ObjectMapper JSON = new ObjectMapper();

    private final PulsarClient client;
    private final List<AutoCloseable> open = new ArrayList<>();
    private final Map<Integer, Consumer<?>> consumers = new HashMap<>();
    private final Map<Integer, Worker> workers = new HashMap<>();
    private final Map<Integer, Message<?>> messages = new HashMap<>();
    private int last = 0;

    Interop(PulsarClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // whatever else is printed is no answer
        BufferedReader orders =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            Interop interop = new Interop(client);
            for (String line = orders.readLine(); line != null; line = orders.readLine()) {
                Map<String, Object> answer = new HashMap<>();
                try {
                    answer.put("is", interop.obey(JSON.readTree(line)));
                } catch (Throwable error) {
                    error.printStackTrace();
                    answer.put("error", error.toString());
                }
                answers.println(JSON.writeValueAsString(answer));
            }
            interop.closeAll();
        }
    }

    private Object obey(JsonNode order) throws Exception {
        switch (order.get("do").asText()) {
            case "subscribe":
                return subscribe(order);
            case "receive":
                return receive(order);
            case "reconsume":
                reconsume(order);
                return null;
            case "acknowledge":
                consumer(order).acknowledge(message(order));
                return null;
            case "nack":
                consumer(order).negativeAcknowledge(message(order));
                return null;
            case "work":
                workers.put(order.get("consumer").asInt(), new Worker(consumer(order)));
                return null;
            case "rest":
                return workers.remove(order.get("consumer").asInt()).rest();
            case "close":
                consumer(order).close();
                return null;
            case "send":
                return send(order);
            case "close all":
                closeAll();
                return null;
            default:
                throw new IllegalArgumentException(order.toString());
        }
    }

    private int subscribe(JsonNode order) throws Exception {
        ConsumerBuilder<?> builder = client.newConsumer(schema(order))
                .subscriptionName(order.get("subscription").asText())
                .subscriptionType(SubscriptionType.valueOf(order.get("type").asText()))
                .receiverQueueSize(order.get("queue").asInt())
                .enableRetry(order.get("retry").asBoolean())
                // Else `close` can overtake those that its timer has just begun to send.
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
        order.get("topics").forEach(topic -> builder.topic(topic.asText()));
        if (!order.get("n").isNull()) {
            int n = order.get("n").asInt();
            builder.deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(n).build());
        }
        Consumer<?> consumer = builder.subscribe();
        open.add(consumer);
        consumers.put(++last, consumer);
        return last;
    }

    private Map<String, Object> receive(JsonNode order) throws Exception {
        Message<?> message =
                consumer(order).receive(order.get("milliseconds").asInt(), TimeUnit.MILLISECONDS);
        if (message == null) {
            return null;
        }
        messages.put(++last, message);
        Map<String, Object> seen = new LinkedHashMap<>();
        Object value = message.getValue();
        seen.put("handle", last);
        seen.put("topic", message.getTopicName());
        seen.put("data", message.getData());
        seen.put("is_null", value == null);
        if (value instanceof KeyValue) {
            KeyValue<?, ?> pair = (KeyValue<?, ?>) value;
            seen.put("value", Map.of("key", pair.getKey(), "value", pair.getValue()));
        } else {
            seen.put("value", value instanceof Order ? value : null);
        }
        seen.put("properties", message.getProperties());
        seen.put("key", message.hasKey() ? message.getKey() : "");
        seen.put("key_bytes", message.hasKey() ? message.getKeyBytes() : null);
        seen.put("is_binary_key", message.hasBase64EncodedKey());
        seen.put("ordering_key", message.getOrderingKey());
        seen.put("event_time", message.getEventTime());
        seen.put("redelivery_count", message.getRedeliveryCount());
        return seen;
    }

    private void reconsume(JsonNode order) throws Exception {
        long delay = order.get("milliseconds").asLong();
        Map<String, String> properties = new HashMap<>();
        order.get("properties").fields().forEachRemaining(
                property -> properties.put(property.getKey(), property.getValue().asText()));
        consumer(order).reconsumeLater(message(order), properties, delay, TimeUnit.MILLISECONDS);
    }

    /** Send all the messages of the order, as one batch if it says so, and return their ids. */
    private List<String> send(JsonNode order) throws Exception {
        List<String> ids = new ArrayList<>();
        try (Producer<?> producer = client.newProducer(schema(order))
                .topic(order.get("topic").asText())
                .messageRoutingMode(MessageRoutingMode.RoundRobinPartition)
                .enableBatching(order.get("batch").asBoolean())
                .enableChunking(!order.get("batch").asBoolean())
                .batchingMaxPublishDelay(10, TimeUnit.SECONDS)
                .create()) {
            List<CompletableFuture<?>> sent = new ArrayList<>();
            for (JsonNode content : order.get("messages")) {
                sent.add(builder(producer, content).sendAsync());
            }
            producer.flush();
            for (CompletableFuture<?> id : sent) {
                ids.add(id.get(20, TimeUnit.SECONDS).toString());
            }
        }
        return ids;
    }

    @SuppressWarnings("unchecked")
    private static TypedMessageBuilder<?> builder(Producer<?> producer, JsonNode content)
            throws Exception {
        TypedMessageBuilder<Object> builder =
                ((Producer<Object>) producer).newMessage();
        if (content.has("order")) {
            builder.value(JSON.treeToValue(content.get("order"), Order.class));
        } else if (content.has("orders")) {
            JsonNode pair = content.get("orders");
            builder.value(new KeyValue<>(
                    JSON.treeToValue(pair.get("key"), Order.class),
                    JSON.treeToValue(pair.get("value"), Order.class)));
        } else if (content.has("pair")) {
            JsonNode pair = content.get("pair");
            builder.value(new KeyValue<>(pair.get("key").asText(), pair.get("value").asText()));
        } else {
            builder.value(content.get("data").isNull() ? null : content.get("data").binaryValue());
        }
        if (content.has("key")) {
            builder.key(content.get("key").asText());
        }
        if (content.has("key_bytes")) {
            builder.keyBytes(content.get("key_bytes").binaryValue());
        }
        if (content.has("ordering_key")) {
            builder.orderingKey(content.get("ordering_key").binaryValue());
        }
        if (content.has("event_time")) {
            builder.eventTime(content.get("event_time").asLong());
        }
        if (content.has("properties")) {
            content.get("properties").fields().forEachRemaining(
                    property -> builder.property(property.getKey(), property.getValue().asText()));
        }
        return builder;
    }

    private static Schema<?> schema(JsonNode order) {
        switch (order.get("schema").asText()) {
            case "json":
                return Schema.JSON(Order.class);
            case "avro":
                return Schema.AVRO(Order.class);
            case "orders":
                return Schema.KeyValue(
                        Schema.AVRO(Order.class), Schema.AVRO(Order.class),
                        KeyValueEncodingType.INLINE);
            case "key/value":
                return Schema.KeyValue(Schema.STRING, Schema.STRING, KeyValueEncodingType.SEPARATED);
            default:
                return Schema.BYTES;
        }
    }

    private Consumer<?> consumer(JsonNode order) {
        return consumers.get(order.get("consumer").asInt());
    }

    private Message<?> message(JsonNode order) {
        return messages.get(order.get("message").asInt());
    }

    /** Leave nothing of one test to the next. */
    private void closeAll() throws Exception {
        for (Worker worker : workers.values()) {
            worker.rest();
        }
        for (AutoCloseable each : open) {
            each.close();
        }
        open.clear();
        consumers.clear();
        workers.clear();
        messages.clear();
    }

    /** Fails every message until its second retry, and "poison" always. */
    private static class Worker extends Thread {
        private final Consumer<?> consumer;
        private final List<List<Object>> handled = new ArrayList<>();
        private volatile boolean resting = false;
        private volatile Exception failure = null;

        Worker(Consumer<?> consumer) {
            this.consumer = consumer;
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            try {
                while (!resting) {
                    Message<?> message = consumer.receive(100, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        handle(message);
                    }
                }
            } catch (Exception error) {
                failure = error;
            }
        }

        private void handle(Message<?> message) throws Exception {
            String text = new String(message.getData(), StandardCharsets.UTF_8);
            int count = Integer.parseInt(message.getProperties().getOrDefault("RECONSUMETIMES", "0"));
            handled.add(List.of(text, count));
            if (count < 2 || text.startsWith("poison")) {
                consumer.reconsumeLater(message, 10, TimeUnit.MILLISECONDS);
            } else {
                consumer.acknowledge(message);
            }
        }

        List<List<Object>> rest() throws Exception {
            resting = true;
            join();
            if (failure != null) {
                throw failure;
            }
            return handled;
        }
    }
}
