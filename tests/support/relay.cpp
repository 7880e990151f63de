// A wire that delays: see relay.py.
//
//     relay ONE OTHER SECONDS LOSS ROOM     (in the namespace of both devices; fd:N is an open socket instead)

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr size_t FRAME_BYTES = (1 << 16) + 64;
constexpr size_t SMALL_BYTES = 2048;  // an acknowledgement does not hold the buffer of a large frame
constexpr int SOCKET_BYTES = 32 << 20;
constexpr int AT_ONCE = 32;  // frames of one direction before the other has its turn
constexpr int64_t EARLY = 200'000;  // ns: a long sleep ends so much before its time and a short one follows, as a
                                    // halted core is late to wake up
constexpr int64_t NEVER = INT64_MAX;
constexpr int EVERY_PROTOCOL = 0x0003;

int64_t now() {
    timespec read;
    clock_gettime(CLOCK_MONOTONIC, &read);
    return read.tv_sec * 1'000'000'000LL + read.tv_nsec;
}

[[noreturn]] void fail(const char* what) {
    std::perror(what);
    std::exit(1);
}

// Buffers of one size; the one given back last is the next, as the cache still has it.
class Buffers {
public:
    explicit Buffers(size_t bytes) : bytes_(bytes) {}

    char* take() {
        if (free_.empty()) return static_cast<char*>(std::malloc(bytes_));
        char* found = free_.back();
        free_.pop_back();
        return found;
    }

    void give(char* buffer) { free_.push_back(buffer); }

private:
    size_t bytes_;
    std::vector<char*> free_;
};

struct Counts {
    int64_t frames = 0, dropped = 0, lost = 0, late = 0;  // late: ns, of all frames together
};

struct Frame {
    int64_t due;
    char* data;
    size_t size;
};

// One direction: frames wait so long, in order, and a share of them goes nowhere.
class Way {
public:
    Way(int source, int target, int64_t wait, double loss, size_t room)
        : source_(source), target_(target), wait_(wait), loss_(loss), room_(room) {}

    int64_t due() const { return waiting_.empty() ? NEVER : waiting_.front().due; }
    const Counts& counts() const { return counts_; }

    // Reads what has come.
    void take() {
        for (int turn = 0; turn < AT_ONCE; ++turn) {
            char* data = large_.take();
            const ssize_t size = recv(source_, data, FRAME_BYTES, 0);
            if (size < 0) {  // nothing more, or the device is down
                large_.give(data);
                return;
            }
            keep(data, static_cast<size_t>(size));
        }
    }

    // Sends what has waited.
    void give() {
        for (int64_t late; !waiting_.empty() && (late = now() - waiting_.front().due) >= 0;) {
            const Frame frame = waiting_.front();
            waiting_.pop_front();
            held_ -= frame.size;
            counts_.late += late;
            ++(send(target_, frame.data, frame.size, 0) < 0 ? counts_.dropped : counts_.frames);
            of(frame.size).give(frame.data);
        }
    }

private:
    void keep(char* data, size_t size) {
        const bool lost = loss_ > 0 && share_(draw_) < loss_;
        if (lost || held_ + size > room_) {
            ++(lost ? counts_.lost : counts_.dropped);
            large_.give(data);
            return;
        }
        if (size <= SMALL_BYTES) {
            char* own = small_.take();
            std::memcpy(own, data, size);
            large_.give(data);
            data = own;
        }
        held_ += size;
        waiting_.push_back({now() + wait_, data, size});
    }

    Buffers& of(size_t size) { return size <= SMALL_BYTES ? small_ : large_; }

    int source_, target_;
    int64_t wait_;
    double loss_;
    size_t room_, held_ = 0;
    Counts counts_;
    Buffers small_{SMALL_BYTES}, large_{FRAME_BYTES};
    std::deque<Frame> waiting_;
    std::mt19937_64 draw_{0};
    std::uniform_real_distribution<double> share_{0.0, 1.0};
};

int opened(const char* device) {
    if (std::strncmp(device, "fd:", 3) == 0) return std::atoi(device + 3);
    const int sock = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0);  // hears nothing before it is bound
    if (sock < 0) fail("socket");
    const int on = 1;
    // frames as the card would have got them, up to 64 KiB, neither cut nor summed; not those that this process sends
    for (const int option : {PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING})
        if (setsockopt(sock, SOL_PACKET, option, &on, sizeof on)) fail("PACKET_*");
    for (const int option : {SO_SNDBUFFORCE, SO_RCVBUFFORCE})
        if (setsockopt(sock, SOL_SOCKET, option, &SOCKET_BYTES, sizeof SOCKET_BYTES)) fail("SO_*BUFFORCE");
    sockaddr_ll at{};
    at.sll_family = AF_PACKET;
    at.sll_protocol = htons(EVERY_PROTOCOL);
    at.sll_ifindex = static_cast<int>(if_nametoindex(device));
    if (at.sll_ifindex == 0 || bind(sock, reinterpret_cast<sockaddr*>(&at), sizeof at)) fail(device);
    return sock;
}

// Before everything else that wants the core, where that is allowed; sleeps end on time.
void promptly() {
    const sched_param first{1};
    sched_setscheduler(0, SCHED_FIFO, &first);
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
}

void tell(const Way* ways, double cpu) {
    Counts sum;
    for (int each = 0; each < 2; ++each) {
        const Counts& of = ways[each].counts();
        sum.frames += of.frames, sum.dropped += of.dropped, sum.lost += of.lost, sum.late += of.late;
    }
    std::printf(
        "{\"frames\": %lld, \"dropped\": %lld, \"lost\": %lld, \"late\": %.9f, \"cpu_seconds\": %.6f}\n",
        static_cast<long long>(sum.frames), static_cast<long long>(sum.dropped), static_cast<long long>(sum.lost),
        static_cast<double>(sum.late) * 1e-9, cpu);
    std::fflush(stdout);
}

double cpu_seconds() {
    timespec read;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &read);
    return static_cast<double>(read.tv_sec) + 1e-9 * static_cast<double>(read.tv_nsec);
}

// How long to sleep at most when the next frame has to go at `due`; null: for ever.
const timespec* until(int64_t due, timespec& room) {
    if (due == NEVER) return nullptr;
    int64_t left = due - now();
    if (left > 2 * EARLY) left -= EARLY;
    if (left < 0) left = 0;
    room = {static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
    return &room;
}

// Frames both ways until standard input ends.
void carry(Way* ways, const int* sources) {
    pollfd ready[] = {{0, POLLIN, 0}, {sources[0], POLLIN, 0}, {sources[1], POLLIN, 0}};
    char line[4096];
    timespec room;
    for (;;) {
        const int64_t due = ways[0].due() < ways[1].due() ? ways[0].due() : ways[1].due();
        if (ppoll(ready, 3, until(due, room), nullptr) < 0 && errno != EINTR) fail("ppoll");
        for (int each = 0; each < 2; ++each)
            if (ready[1 + each].revents) ways[each].take();
        if (ready[0].revents) {
            if (read(0, line, sizeof line) <= 0) return;
            tell(ways, cpu_seconds());
        }
        for (int each = 0; each < 2; ++each) ways[each].give();
    }
}

}  // namespace

int main(int count, char** words) {
    if (count != 6) return 2;
    const int sources[] = {opened(words[1]), opened(words[2])};
    const auto wait = static_cast<int64_t>(std::atof(words[3]) * 1e9);
    const double loss = std::atof(words[4]);
    const auto room = static_cast<size_t>(std::atoll(words[5]));
    Way ways[] = {{sources[0], sources[1], wait, loss, room}, {sources[1], sources[0], wait, loss, room}};
    promptly();
    std::puts("ready");
    std::fflush(stdout);
    carry(ways, sources);
    return 0;
}
