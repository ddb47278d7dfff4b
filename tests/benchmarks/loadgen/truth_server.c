/* A streaming chat endpoint that knows the truth: the yardstick of a load generator's figures.
 *
 * It sends each answer's tokens on a fixed schedule and writes down when each answer's first and last tokens really
 * left. One thread and one epoll, cheap enough that the client under test is the bottleneck.
 *
 *   cc -O2 -o truth_server truth_server.c
 *   ./truth_server FILE.csv FIRST_US GAP_US [TOKENS_PER_CHUNK [CHUNKS_PER_WRITE]]
 *
 * prints its port, and serves until SIGTERM. The n-th token is due FIRST_US + n * GAP_US after its request was read.
 * A chunk of several tokens waits for the last of them, and so does a write of several chunks. `max_tokens` or
 * `max_completion_tokens` says how many tokens an answer has (64). Any GET is answered with a list of models.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 65536, MOST_EVENTS = 1024, READ_BYTES = 65536, WRITE_BYTES = 65536, ID_BYTES = 96 };

typedef struct {
    int place; /* in the heap; -1 without an answer under way */
    int sent, tokens;
    int64_t due_ns, requested_ns, first_ns, last_ns;
    size_t filled, capacity;
    char *input;
    char id[ID_BYTES];
} Connection;

static Connection connections[MOST_CONNECTIONS];
static int heap[MOST_CONNECTIONS], heap_size;
static int64_t first_ns, gap_ns;
static int tokens_per_chunk = 1, chunks_per_write = 1;
static FILE *truth;
static int events_fd, timer_fd;
static volatile sig_atomic_t is_stopping;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* the heap holds the connections with an answer under way, the earliest due first. */

static void put(int place, int fd) {
    heap[place] = fd;
    connections[fd].place = place;
}

static void settle(int place) {
    int fd = heap[place];
    int64_t due_ns = connections[fd].due_ns;
    for (; place > 0 && due_ns < connections[heap[(place - 1) / 2]].due_ns; place = (place - 1) / 2)
        put(place, heap[(place - 1) / 2]);
    for (int child; (child = 2 * place + 1) < heap_size; place = child) {
        if (child + 1 < heap_size && connections[heap[child + 1]].due_ns < connections[heap[child]].due_ns) child++;
        if (due_ns <= connections[heap[child]].due_ns) break;
        put(place, heap[child]);
    }
    put(place, fd);
}

static void leave_heap(int fd) {
    int place = connections[fd].place;
    if (place < 0) return;
    connections[fd].place = -1;
    if (place == --heap_size) return;
    put(place, heap[heap_size]);
    settle(place);
}

static void hang_up(int fd) {
    leave_heap(fd);
    free(connections[fd].input);
    memset(&connections[fd], 0, sizeof connections[fd]);
    connections[fd].place = -1;
    close(fd);
}

static int send_all(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t count = send(fd, data, size, MSG_NOSIGNAL);
        if (count < 0 && errno == EAGAIN) usleep(50);
        else if (count < 0) return -1;
        else data += count, size -= count;
    }
    return 0;
}

static size_t add_chunk(char *at, const char *payload) {
    return sprintf(at, "%zx\r\ndata: %s\n\n\r\n", strlen(payload) + 8, payload);
}

#define COMMON "\"id\":\"chatcmpl-%d\",\"object\":\"chat.completion.chunk\",\"created\":1764547200,\"model\":\"truth\""

static size_t add_tokens(char *at, int fd, int count, int is_first, int is_last) {
    char text[2048] = "", payload[4096];
    for (int token = 0; token < count && strlen(text) < sizeof text - 8; token++) strcat(text, "token ");
    sprintf(payload,
            "{" COMMON ",\"choices\":[{\"index\":0,\"delta\":{%s\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":%s}]}",
            fd, is_first ? "\"role\":\"assistant\"," : "", text, is_last ? "\"length\"" : "null");
    return add_chunk(at, payload);
}

static size_t add_end(char *at, int fd, int tokens) {
    char payload[1024];
    sprintf(payload,
            "{" COMMON ",\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":%d,\"total_tokens\":%d}}",
            fd, tokens, tokens + 10);
    size_t size = add_chunk(at, payload);
    size += add_chunk(at + size, "[DONE]");
    return size + sprintf(at + size, "0\r\n\r\n");
}

/* when the write that brings the next tokens is due: with the last of them. */
static int64_t next_due_ns(const Connection *connection) {
    int last = connection->sent + tokens_per_chunk * chunks_per_write;
    if (last > connection->tokens) last = connection->tokens;
    return connection->requested_ns + first_ns + (last - 1) * gap_ns;
}

static void write_tokens(int fd) {
    Connection *connection = &connections[fd];
    char output[WRITE_BYTES];
    size_t size = 0;
    int is_first = connection->sent == 0;
    for (int chunk = 0; chunk < chunks_per_write && connection->sent < connection->tokens; chunk++) {
        int count = connection->tokens - connection->sent;
        if (count > tokens_per_chunk) count = tokens_per_chunk;
        connection->sent += count;
        size += add_tokens(output + size, fd, count, is_first && !chunk, connection->sent == connection->tokens);
    }
    connection->last_ns = now_ns();
    if (is_first) connection->first_ns = connection->last_ns;
    if (send_all(fd, output, size)) {
        hang_up(fd);
        return;
    }
    if (connection->sent < connection->tokens) {
        connection->due_ns = next_due_ns(connection);
        settle(connection->place);
        return;
    }
    /* counts come in a write of their own: they are no token. */
    leave_heap(fd);
    fprintf(truth, "%s,%lld,%lld,%lld,%d\n", connection->id, (long long)connection->requested_ns,
            (long long)connection->first_ns, (long long)connection->last_ns, connection->tokens);
    send_all(fd, output, add_end(output, fd, connection->tokens));
}

static int number_after(const char *text, const char *name, int otherwise) {
    const char *found = strstr(text, name);
    return found && (found = strchr(found, ':')) ? atoi(found + 1) : otherwise;
}

static void answer(int fd, const char *head, const char *body) {
    Connection *connection = &connections[fd];
    if (!strncmp(head, "GET", 3)) {
        const char *models = "{\"object\":\"list\",\"data\":[{\"id\":\"truth\",\"object\":\"model\"}]}";
        char output[512];
        size_t size = sprintf(output, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                              strlen(models), models);
        send_all(fd, output, size);
        return;
    }
    connection->requested_ns = now_ns();
    connection->sent = 0;
    connection->tokens = number_after(body, "\"max_completion_tokens\"", number_after(body, "\"max_tokens\"", 64));
    if (connection->tokens < 1) connection->tokens = 1;
    const char *id = strcasestr(head, "\nx-request-id:");
    connection->id[0] = 0;
    if (id) sscanf(id + 14, " %95[^\r\n]", connection->id);
    const char *start = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    if (send_all(fd, start, strlen(start))) {
        hang_up(fd);
        return;
    }
    connection->due_ns = next_due_ns(connection);
    put(heap_size++, fd);
    settle(heap_size - 1);
}

static void read_requests(int fd) {
    Connection *connection = &connections[fd];
    if (connection->capacity - connection->filled < READ_BYTES) {
        connection->capacity = 2 * connection->capacity + 2 * READ_BYTES;
        connection->input = realloc(connection->input, connection->capacity);
    }
    ssize_t count = recv(fd, connection->input + connection->filled, READ_BYTES - 1, 0);
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) {
        hang_up(fd);
        return;
    }
    connection->filled += count;
    connection->input[connection->filled] = 0;
    char *end;
    while (connection->filled && (end = strstr(connection->input, "\r\n\r\n"))) {
        char *body = end + 4, *length = strcasestr(connection->input, "\ncontent-length:");
        size_t size = (body - connection->input) + (length && length < end ? strtoul(length + 16, 0, 10) : 0);
        if (connection->filled < size) return;
        char next = connection->input[size];
        *end = connection->input[size] = 0;
        answer(fd, connection->input, body);
        if (!connection->input) return;
        connection->input[size] = next;
        connection->filled -= size;
        memmove(connection->input, connection->input + size, connection->filled + 1);
    }
}

static void watch(int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(events_fd, EPOLL_CTL_ADD, fd, &event);
}

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
        if (fd >= MOST_CONNECTIONS) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        connections[fd].place = -1;
        watch(fd);
    }
}

static void set_timer(void) {
    int64_t due_ns = connections[heap[0]].due_ns;
    struct itimerspec at = {.it_value = {due_ns / 1000000000, due_ns % 1000000000}};
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &at, 0);
}

static void stop(int number) {
    (void)number;
    is_stopping = 1;
}

int main(int argc, char **argv) {
    if (argc < 4 || !(truth = fopen(argv[1], "w"))) {
        fprintf(stderr, "usage: truth_server FILE.csv FIRST_US GAP_US [TOKENS_PER_CHUNK [CHUNKS_PER_WRITE]]\n");
        return 2;
    }
    fprintf(truth, "id,requested_ns,first_ns,last_ns,tokens\n");
    first_ns = atoll(argv[2]) * 1000;
    gap_ns = atoll(argv[3]) * 1000;
    if (argc > 4) tokens_per_chunk = atoi(argv[4]);
    if (argc > 5) chunks_per_write = atoi(argv[5]);
    if (tokens_per_chunk < 1 || chunks_per_write < 1 || tokens_per_chunk * chunks_per_write > 64) return 2;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGTERM, stop);
    signal(SIGINT, stop);

    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 4096)) return perror("listen"), 1;
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);

    events_fd = epoll_create1(0);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    watch(listener);
    watch(timer_fd);
    while (!is_stopping) {
        /* requests that arrive in a burst of tokens are stamped after a few of these, not after all. */
        for (int count = 0; count < 16 && heap_size && connections[heap[0]].due_ns <= now_ns(); count++)
            write_tokens(heap[0]);
        if (heap_size) set_timer();
        struct epoll_event ready[MOST_EVENTS];
        int count = epoll_wait(events_fd, ready, MOST_EVENTS, -1);
        for (int index = 0; index < count; index++) {
            int fd = ready[index].data.fd;
            uint64_t rings;
            if (fd == listener) accept_all(fd);
            else if (fd == timer_fd) (void)!read(fd, &rings, sizeof rings);
            else read_requests(fd);
        }
    }
    return fclose(truth);
}
