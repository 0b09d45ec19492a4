import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * The Java client in a race: what a message costs, from the first one received to the last one
 * settled.
 *
 * <p>A line of JSON in is a race, `{"do": …, "topic": …, "messages": …}`; a line of JSON out is its
 * time, `{"is": seconds}` or `{"error": …}`. The topic is filled before, and each race subscribes.
 */
public class Race {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final JsonNode order;
    private final Consumer<byte[]> consumer;
    private final int messages;
    private final long delay;
    private long began;

    private Race(PulsarClient client, JsonNode order) throws Exception {
        this.order = order;
        messages = order.get("messages").asInt();
        delay = order.get("delay_ms").asLong();
        consumer = client.newConsumer()
                .topic(order.get("topic").asText())
                .subscriptionName("race")
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .enableRetry(true)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(16).build())
                .subscribe();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // whatever else is printed is no answer
        BufferedReader orders =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (String line = orders.readLine(); line != null; line = orders.readLine()) {
                Map<String, Object> answer;
                try {
                    answer = Map.of("is", new Race(client, JSON.readTree(line)).run());
                } catch (Throwable error) {
                    error.printStackTrace();
                    answer = Map.of("error", error.toString());
                }
                answers.println(JSON.writeValueAsString(answer));
            }
        }
    }

    private double run() throws Exception {
        try {
            switch (order.get("do").asText()) {
                case "acknowledge":
                    acknowledge();
                    break;
                case "reconsume":
                    reconsume();
                    break;
                case "pipeline":
                    pipeline(order.get("in_flight").asInt());
                    break;
                case "loop":
                    loop(order.get("in_flight").asInt());
                    break;
                default:
                    throw new IllegalArgumentException(order.toString());
            }
            return (System.nanoTime() - began) / 1e9;
        } finally {
            consumer.close();
        }
    }

    private Message<byte[]> receive() throws Exception {
        Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
        if (message == null) {
            throw new IllegalStateException("no message came");
        }
        if (began == 0) {
            began = System.nanoTime();
        }
        return message;
    }

    /** Receive and acknowledge. */
    private void acknowledge() throws Exception {
        for (int i = 0; i < messages; i++) {
            consumer.acknowledgeAsync(receive());
        }
    }

    /** Hand on one by one. */
    private void reconsume() throws Exception {
        for (int i = 0; i < messages; i++) {
            consumer.reconsumeLater(receive(), delay, TimeUnit.MILLISECONDS);
        }
    }

    /** Hand on, at most so many at a time. */
    private void pipeline(int inFlight) throws Exception {
        Letters letters = new Letters(inFlight);
        for (int i = 0; i < messages; i++) {
            letters.send(receive());
        }
        letters.await();
    }

    /** Hand on what comes the first time, acknowledge what comes the second time. */
    private void loop(int inFlight) throws Exception {
        Letters letters = new Letters(inFlight);
        for (int done = 0; done < messages; ) {
            Message<byte[]> message = receive();
            if (message.hasProperty("RECONSUMETIMES")) {
                consumer.acknowledgeAsync(message);
                done++;
            } else {
                letters.send(message);
            }
        }
        letters.await();
    }

    private class Letters {
        private final int limit;
        private final Semaphore free;
        private final AtomicReference<Throwable> failure = new AtomicReference<>();

        Letters(int limit) {
            this.limit = limit;
            free = new Semaphore(limit);
        }

        void send(Message<byte[]> message) throws Exception {
            free.acquire();
            consumer.reconsumeLaterAsync(message, delay, TimeUnit.MILLISECONDS)
                    .whenComplete((nothing, error) -> {
                        if (error != null) {
                            failure.set(error);
                        }
                        free.release();
                    });
        }

        void await() throws Exception {
            free.acquire(limit);
            if (failure.get() != null) {
                throw new IllegalStateException(failure.get());
            }
        }
    }
}
