#include "double.hpp"

#include "cuda/double.hpp"

#if __has_include(<nccl_device.h>)
#include <nccl_device.h>
#endif

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace {

std::mutex big;  // one lock for everything that ranks share
std::condition_variable changed;

std::map<std::string, int> call_counts;
std::map<std::string, int> network_counts;
std::vector<nccl_double::transfer> given;
int version_code = NCCL_VERSION_CODE;
std::map<void*, std::size_t> allocated;
std::map<const void*, int> allocated_on;
struct clique;
struct registration {
  const void* of;  // whose communicator
  std::shared_ptr<clique> group;
  std::size_t number;
  void* memory;
};
std::map<const void*, registration> registered;  // by the handle of the window
std::uintptr_t last_window = 0;
bool has_windows = true, symmetric = true;
int lsa_team = 0;
int open_devices = 0;
int living = 0;
std::map<int, ncclResult_t> broken;
unsigned next_id = 1;
thread_local std::map<std::string, ncclResult_t> planned_failures;

void locked(const std::function<void()>& what) {
  const std::lock_guard lock(big);
  what();
}
ncclResult_t count(const char* function) {
  const auto planned = planned_failures.find(function);
  const ncclResult_t result = planned == planned_failures.end() ? ncclSuccess : planned->second;
  if (planned != planned_failures.end()) planned_failures.erase(planned);
  const std::lock_guard lock(big);
  ++call_counts[function];
  return result;
}

enum class kind { broadcast, all_reduce, reduce, reduce_scatter, all_gather, all_to_all, send, recv };

struct member {
  std::shared_ptr<clique> group;
  int rank = 0;
  bool blocking = false, aborted = false;
  int in_progress = 0;  // polls until NCCL has taken over the last call
  ncclResult_t failure = ncclSuccess;
  std::size_t collectives = 0, splits = 0, windows = 0, devices = 0, open_devices = 0;
  ncclComm_t* split_to = nullptr;
  std::function<void()> late;  // what a thread of NCCL's writes before the state is success again
  int device = 0;
  // Of streams that have not come to a call of it, and of graphs that have captured one.
  std::mutex using_it;
  std::condition_variable used;
  int uses = 0;
  bool finalized = false;
};

// What is in a stream or a graph.
struct use {
  explicit use(std::shared_ptr<member> whose) : who(std::move(whose)) {
    const std::lock_guard lock(who->using_it);
    ++who->uses;
  }
  use(const use&) = delete;
  use& operator=(const use&) = delete;
  ~use() {
    const std::lock_guard lock(who->using_it);
    --who->uses;
    who->used.notify_all();
  }
  std::shared_ptr<member> who;
};

struct op {
  kind what;
  const void* from;
  void* to;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t fold;
  int peer;  // or root
  std::shared_ptr<member> who;
  std::size_t number = 0;
  bool done = false;
};

struct split_round {
  std::vector<std::pair<int, int>> wanted;  // color, key
  int arrived = 0;
  std::map<int, std::shared_ptr<clique>> made;
};

// Of a device communicator.
struct lsa_barriers {
  nccl_double::barrier_use use;
  bool dead = false;
};

struct clique {
  int size = 0, joined = 0;
  bool dead = false;
  ncclResult_t failure = ncclSuccess;
  std::vector<int> devices;
  std::map<std::size_t, std::vector<op*>> meeting;  // collectives by number
  std::map<std::pair<int, int>, std::deque<op*>> sends, recvs;
  std::deque<split_round> splits;
  std::vector<std::size_t> windows;
  std::vector<std::vector<void*>> window_memory;  // by rank
  std::vector<std::shared_ptr<lsa_barriers>> barriers;
};

std::map<std::string, std::shared_ptr<clique>> cliques;
std::vector<std::shared_ptr<lsa_barriers>> all_devices;

// With `big` locked.
bool in_window(const void* memory, std::size_t bytes, const member& who) {
  return std::any_of(registered.begin(), registered.end(), [&](const auto& r) {
    const char *const begin = static_cast<const char*>(r.second.memory), *const at = static_cast<const char*>(memory);
    return r.second.of == &who && at >= begin && at + bytes <= begin + allocated.at(r.second.memory);
  });
}

std::size_t width(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

template <class T, class W = T>
void fold_as(void* left, const void* right, std::size_t n, ncclRedOp_t how) {
  T* a = static_cast<T*>(left);
  const T* b = static_cast<const T*>(right);
  for (std::size_t i = 0; i < n; ++i) {
    const W x = static_cast<W>(a[i]), y = static_cast<W>(b[i]);
    const W z = how == ncclSum    ? static_cast<W>(x + y)
                : how == ncclProd ? static_cast<W>(x * y)
                : how == ncclMax  ? (std::max)(x, y)
                                  : (std::min)(x, y);
    a[i] = static_cast<T>(z);
  }
}
void fold(void* a, const void* b, std::size_t n, ncclDataType_t type, ncclRedOp_t how) {
  switch (type) {
    case ncclInt8:
      return fold_as<std::int8_t>(a, b, n, how);
    case ncclUint8:
      return fold_as<std::uint8_t>(a, b, n, how);
    case ncclInt32:
      return fold_as<std::int32_t>(a, b, n, how);
    case ncclUint32:
      return fold_as<std::uint32_t>(a, b, n, how);
    case ncclInt64:
      return fold_as<std::int64_t>(a, b, n, how);
    case ncclUint64:
      return fold_as<std::uint64_t>(a, b, n, how);
    case ncclFloat32:
      return fold_as<float>(a, b, n, how);
    case ncclFloat64:
      return fold_as<double>(a, b, n, how);
    case ncclFloat16:
      return fold_as<__half, float>(a, b, n, how);
    case ncclBfloat16:
      return fold_as<__nv_bfloat16, float>(a, b, n, how);
    case ncclFloat8e4m3:
      return fold_as<__nv_fp8_e4m3, float>(a, b, n, how);
    default:
      return fold_as<__nv_fp8_e5m2, float>(a, b, n, how);
  }
}

using bytes = std::vector<char>;
bytes content(const void* from, std::size_t n) {
  bytes x(n);
  if (n > 0) std::memcpy(x.data(), from, n);
  return x;
}
void store(void* to, const bytes& x) {
  if (!x.empty()) std::memcpy(to, x.data(), x.size());
}

// All members are there: moves the data. False if they disagree, which never ends.
bool collective(const std::vector<op*>& ops) {
  const op& first = *ops[0];
  for (const op* o : ops)
    if (o->what != first.what || o->count != first.count || o->type != first.type || o->fold != first.fold ||
        o->peer != first.peer)
      return false;
  const std::size_t p = ops.size(), n = first.count * width(first.type);
  const bool blocks = first.what == kind::reduce_scatter || first.what == kind::all_to_all;
  std::vector<bytes> in;
  for (const op* o : ops) in.push_back(content(o->from, blocks ? n * p : n));
  if (first.what == kind::all_reduce || first.what == kind::reduce || first.what == kind::reduce_scatter) {
    bytes sum = in[p - 1];  // from the last rank down, which is not heddle's order
    for (std::size_t r = p - 1; r-- > 0;)
      fold(sum.data(), in[r].data(), sum.size() / width(first.type), first.type, first.fold);
    for (std::size_t r = 0; r < p; ++r) {
      if (first.what == kind::reduce && static_cast<int>(r) != first.peer) continue;
      const auto begin = sum.begin() + static_cast<std::ptrdiff_t>(blocks ? r * n : 0);
      store(ops[r]->to, bytes(begin, begin + static_cast<std::ptrdiff_t>(n)));
    }
    return true;
  }
  for (std::size_t r = 0; r < p; ++r) {
    bytes out;
    for (std::size_t s = 0; s < p; ++s) {
      if (first.what == kind::broadcast && static_cast<int>(s) != first.peer) continue;
      const auto begin = in[s].begin() + static_cast<std::ptrdiff_t>(blocks ? r * n : 0);
      out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(n));
    }
    store(ops[r]->to, out);
  }
  return true;
}

void post(op& o) {  // with `big` locked
  clique& group = *o.who->group;
  if (group.dead) return;
  if (o.what == kind::send || o.what == kind::recv) {
    const bool sends = o.what == kind::send;
    const std::pair<int, int> way = sends ? std::pair(o.who->rank, o.peer) : std::pair(o.peer, o.who->rank);
    auto& others = sends ? group.recvs[way] : group.sends[way];
    if (others.empty()) {
      (sends ? group.sends : group.recvs)[way].push_back(&o);
      return;
    }
    op& other = *others.front();
    if (other.count != o.count || other.type != o.type) return;  // never ends
    others.pop_front();
    store(sends ? other.to : o.to, content(sends ? o.from : other.from, o.count * width(o.type)));
    o.done = other.done = true;
    return;
  }
  auto& place = group.meeting[o.number];
  place.resize(static_cast<std::size_t>(group.size), nullptr);
  place[static_cast<std::size_t>(o.who->rank)] = &o;
  if (std::find(place.begin(), place.end(), nullptr) != place.end()) return;
  if (collective(place))
    for (op* x : place) x->done = true;
}

}  // namespace

struct ncclComm {
  std::shared_ptr<member> me;
};

namespace {

struct enqueued {
  op what;
  cudaStream_t stream;
};
thread_local int depth = 0;
thread_local std::vector<enqueued> group_ops;

// What is captured runs as often as its graph, each time as a call of its own.
void launch(std::vector<enqueued> all) {
  std::map<cudaStream_t, std::shared_ptr<std::vector<op>>> by_stream;
  const auto is_message = [](const op& o) { return o.what == kind::send || o.what == kind::recv; };
  for (enqueued& e : all) {
    if (!is_message(e.what) && !cuda_double::is_captured(e.stream)) e.what.number = e.what.who->collectives++;
    auto& ops = by_stream[e.stream];
    if (ops == nullptr) ops = std::make_shared<std::vector<op>>();
    ops->push_back(e.what);
  }
  for (auto& [stream, ops] : by_stream) {
    auto uses = std::make_shared<std::vector<std::unique_ptr<use>>>();
    for (const op& o : *ops) uses->push_back(std::make_unique<use>(o.who));
    cuda_double::enqueue_waiting(stream, [ops = ops, uses, captured = cuda_double::is_captured(stream), is_message] {
      std::unique_lock lock(big);
      for (op& o : *ops) {
        o.done = false;
        if (captured && !is_message(o)) o.number = o.who->collectives++;
      }
      for (op& o : *ops) post(o);
      changed.notify_all();
      changed.wait(lock, [&] {
        return std::all_of(ops->begin(), ops->end(), [](const op& o) { return o.done || o.who->aborted; });
      });
    });
  }
}

// Ends an asynchronous call that says success all the same, as those do which NCCL ends through its own group.
ncclResult_t goes_on(member& who, std::function<void()> late) {
  if (who.blocking) {
    late();
    return ncclSuccess;
  }
  who.in_progress = 2;
  who.late = std::move(late);
  return ncclSuccess;
}

ncclResult_t taken_over(member& who) {
  if (who.blocking) return ncclSuccess;
  who.in_progress = 2;
  return ncclInProgress;
}

ncclResult_t call(const char* function, kind what, const void* from, void* to, std::size_t n, ncclDataType_t type,
                  ncclRedOp_t fold, int peer, ncclComm_t comm, cudaStream_t stream) {
  if (const auto planned = count(function); planned != ncclSuccess) return planned;
  member& who = *comm->me;
  {
    const std::lock_guard lock(big);
    if (who.group->joined < who.group->size || who.in_progress > 0 || stream == nullptr) return ncclInvalidUsage;
    const std::size_t block = n * width(type), all = block * static_cast<std::size_t>(who.group->size);
    const bool blocks_in = what == kind::reduce_scatter || what == kind::all_to_all;
    const bool blocks_out = what == kind::all_gather || what == kind::all_to_all;
    const bool reads = what != kind::recv && (what != kind::broadcast || who.rank == peer);
    const bool writes = what != kind::send && (what != kind::reduce || who.rank == peer);
    const bool in_windows = (!reads || in_window(from, blocks_in ? all : block, who)) &&
                            (!writes || in_window(to, blocks_out ? all : block, who));
    given.push_back({function, type, n, in_windows});
  }
  const bool message = what == kind::send || what == kind::recv;
  if (n == 0 && !message) return ncclSuccess;
  std::vector<enqueued> one{{{what, from, to, n, type, fold, peer, comm->me}, stream}};
  if (depth > 0) {
    group_ops.push_back(one[0]);
    return ncclSuccess;
  }
  launch(std::move(one));
  const std::lock_guard lock(big);
  return taken_over(who);
}

// With `big` locked.
ncclComm_t join(std::shared_ptr<clique> group, int rank, bool blocking) {
  auto me = std::make_shared<member>();
  me->group = std::move(group);
  me->rank = rank;
  me->blocking = blocking;
  me->device = cuda_double::current_device();
  ++living;
  ++me->group->joined;
  if (std::find(me->group->devices.begin(), me->group->devices.end(), cuda_double::current_device()) !=
      me->group->devices.end())
    me->group->failure = ncclInvalidUsage;  // two ranks on one GPU
  me->group->devices.push_back(cuda_double::current_device());
  changed.notify_all();
  return new ncclComm{me};
}
void make_part(member& me) {
  clique& group = *me.group;
  split_round& round = group.splits[me.splits - 1];
  const auto [color, key] = round.wanted[static_cast<std::size_t>(me.rank)];
  auto& child = round.made[color];
  if (child == nullptr) child = std::make_shared<clique>();
  int index = 0, size = 0;
  for (int r = 0; r < group.size; ++r) {
    const auto [c, k] = round.wanted[static_cast<std::size_t>(r)];
    if (c != color) continue;
    ++size;
    index += std::pair(k, r) < std::pair(key, me.rank);
  }
  child->size = size;
  *me.split_to = join(child, index, me.blocking);
  me.split_to = nullptr;
}

}  // namespace

namespace nccl_double {
std::map<std::string, int> calls() {
  std::map<std::string, int> all = cuda_double::calls();
  const std::lock_guard lock(big);
  all.insert(call_counts.begin(), call_counts.end());
  return all;
}
std::map<std::string, int> networks() {
  const std::lock_guard lock(big);
  return network_counts;
}
std::vector<transfer> transfers() {
  const std::lock_guard lock(big);
  return given;
}
int open_communicators() {
  const std::lock_guard lock(big);
  return living;
}
int open_resources() {
  const std::lock_guard lock(big);
  return cuda_double::open_resources() + static_cast<int>(allocated.size() + registered.size()) + open_devices;
}
void reset() {
  cuda_double::reset();
  locked([] {
    call_counts.clear();
    network_counts.clear();
    given.clear();
    broken.clear();
    cliques.clear();
    version_code = NCCL_VERSION_CODE;
    has_windows = symmetric = true;
    lsa_team = 0;
    all_devices.clear();
  });
}
void lsa_ranks(int ranks) {
  locked([&] { lsa_team = ranks; });
}
void* peer_memory(void* window, std::size_t offset, int rank) {
  static char of_the_dead[1 << 16];
  const std::lock_guard lock(big);
  const auto at = registered.find(window);
  if (at == registered.end() || at->second.group->dead) return of_the_dead;
  return static_cast<char*>(at->second.group->window_memory.at(at->second.number).at(static_cast<std::size_t>(rank))) +
         offset;
}
void meet_peers(void* key, int rank, int block) {
  lsa_barriers& device = *static_cast<lsa_barriers*>(key);
  std::unique_lock lock(big);
  if (static_cast<std::size_t>(block) >= device.use.arrivals.size()) {
    ++device.use.without;
    return;
  }
  std::vector<int>& came = device.use.arrivals[static_cast<std::size_t>(block)];
  const int mine = ++came[static_cast<std::size_t>(rank)];
  changed.notify_all();
  changed.wait(
      lock, [&] { return device.dead || std::all_of(came.begin(), came.end(), [mine](int n) { return n >= mine; }); });
}
std::vector<barrier_use> barrier_uses() {
  const std::lock_guard lock(big);
  std::vector<barrier_use> all;
  for (const auto& device : all_devices) all.push_back(device->use);
  return all;
}
int device_of(const void* memory) {
  const std::lock_guard lock(big);
  const auto at = allocated_on.find(memory);
  return at == allocated_on.end() ? -1 : at->second;
}
void windows(bool has) {
  locked([&] { has_windows = has; });
}
void symmetric_memory(bool has) {
  locked([&] { symmetric = has; });
}
void devices(int n) {
  cuda_double::devices(n);
}
void version(int code) {
  locked([&] { version_code = code; });
}
void fail_next(const std::string& function, ncclResult_t result) {
  planned_failures[function] = result;
}
void break_device(int device, ncclResult_t result) {
  locked([&] { broken[device] = result; });
}
}  // namespace nccl_double

extern "C" {

ncclResult_t ncclGetVersion(int* code) {
  const std::lock_guard lock(big);
  *code = version_code;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const auto planned = count("ncclGetUniqueId"); planned != ncclSuccess) return planned;
  std::memset(id, 0, sizeof *id);
  const std::lock_guard lock(big);
  std::snprintf(id->internal, sizeof id->internal, "id %u", next_id++);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (const auto planned = count("ncclCommInitRankConfig"); planned != ncclSuccess) return planned;
  if (cuda_double::captures_here()) return ncclInvalidUsage;  // connecting takes memory and waits
  std::unique_lock lock(big);
  ++network_counts[config->netName == nullptr ? "" : config->netName];
  auto& group = cliques[id.internal];
  if (group == nullptr) group = std::make_shared<clique>();
  group->size = size;
  const auto mine = group;
  *comm = join(mine, rank, config->blocking != 0);
  if (config->blocking == 0) return ncclInProgress;
  changed.wait(lock, [&] { return mine->joined == mine->size; });
  return mine->failure;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard lock(big);
  member& me = *comm->me;
  clique& group = *me.group;
  *state = ncclSuccess;
  if (const auto found = broken.find(me.device); found != broken.end()) {
    *state = found->second;
  } else if (group.failure != ncclSuccess) {
    *state = group.failure;
  } else if (group.joined < group.size) {
    *state = ncclInProgress;
  } else if (me.split_to != nullptr) {
    if (group.splits[me.splits - 1].arrived < group.size)
      *state = ncclInProgress;
    else
      make_part(me);
  } else if (me.in_progress > 0) {
    if (--me.in_progress == 0 && me.late) std::exchange(me.late, nullptr)();
    *state = ncclInProgress;
  } else if (me.finalized) {
    const std::lock_guard using_it(me.using_it);
    if (me.uses > 0) *state = ncclInProgress;
  }
  return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t*) {
  if (const auto planned = count("ncclCommSplit"); planned != ncclSuccess) return planned;
  if (cuda_double::captures_here()) return ncclInvalidUsage;  // connecting takes memory and waits
  std::unique_lock lock(big);
  member& me = *comm->me;
  clique& group = *me.group;
  if (me.in_progress > 0) return ncclInvalidArgument;
  if (group.splits.size() <= me.splits) group.splits.emplace_back();
  split_round& round = group.splits[me.splits++];
  round.wanted.resize(static_cast<std::size_t>(group.size));
  round.wanted[static_cast<std::size_t>(me.rank)] = {color, key};
  ++round.arrived;
  me.split_to = child;
  *child = nullptr;
  changed.notify_all();
  if (!me.blocking) return ncclSuccess;  // and goes on
  changed.wait(lock, [&] { return round.arrived == group.size; });
  make_part(me);
  return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  if (const auto planned = count("ncclMemAlloc"); planned != ncclSuccess) return planned;
  const std::lock_guard lock(big);
  *memory = ::operator new(bytes, std::align_val_t{NCCL_WIN_REQUIRED_ALIGNMENT});
  allocated[*memory] = bytes;
  allocated_on[*memory] = cuda_double::current_device();
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* memory) {
  if (memory == nullptr) return ncclSuccess;
  const std::lock_guard lock(big);
  for (const auto& [window, r] : registered)
    if (r.memory == memory) return ncclInvalidArgument;
  if (allocated.erase(memory) == 0) return ncclInvalidArgument;
  allocated_on.erase(memory);
  ::operator delete(memory, std::align_val_t{NCCL_WIN_REQUIRED_ALIGNMENT});
  return ncclSuccess;
}
// The n-th window of a communicator has one size on all ranks, and is memory of NCCL's.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, std::size_t bytes, ncclWindow_t* window, int flags) {
  if (const auto planned = count("ncclCommWindowRegister"); planned != ncclSuccess) return planned;
  if (cuda_double::captures_here()) return ncclInvalidUsage;
  const std::lock_guard lock(big);
  if (comm->me->in_progress > 0) return ncclInvalidArgument;
  const auto at = allocated.find(memory);
  std::vector<std::size_t>& sizes = comm->me->group->windows;
  const std::size_t n = comm->me->windows++;
  if (n == sizes.size()) sizes.push_back(bytes);
  if (at == allocated.end() || bytes > at->second || bytes != sizes[n] || flags != NCCL_WIN_COLL_SYMMETRIC)
    return ncclInvalidArgument;
  auto& memories = comm->me->group->window_memory;
  memories.resize((std::max)(memories.size(), n + 1));
  memories[n].resize(static_cast<std::size_t>(comm->me->group->size));
  memories[n][static_cast<std::size_t>(comm->me->rank)] = memory;
  *window = nullptr;
  return goes_on(*comm->me, [me = comm->me.get(), has = has_windows, n, memory, window] {
    if (!has) return;
    *window = reinterpret_cast<ncclWindow_t>(last_window += 64);
    registered[*window] = {me, me->group, n, memory};
  });
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  if (const auto planned = count("ncclCommWindowDeregister"); planned != ncclSuccess) return planned;
  const std::lock_guard lock(big);
  const auto at = registered.find(window);
  if (at == registered.end() || at->second.of != comm->me.get()) return ncclInvalidArgument;
  registered.erase(at);
  return ncclSuccess;
}
#if __has_include(<nccl_device.h>)
ncclTeam_t ncclTeamLsa(ncclComm_t comm) {
  const std::lock_guard lock(big);
  const int size = comm->me->group->size, rank = comm->me->rank;
  const int team = lsa_team > 0 && lsa_team < size ? lsa_team : size;
  return {team, rank % team, 1};
}
// The n-th device communicator has as many barriers on all ranks.
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* needs, ncclDevComm_t* made) {
  if (const auto planned = count("ncclDevCommCreate"); planned != ncclSuccess) return planned;
  const std::lock_guard lock(big);
  clique& group = *comm->me->group;
  if (comm->me->in_progress > 0) return ncclInvalidArgument;
  if (!symmetric) return ncclInvalidUsage;
  const std::size_t n = comm->me->devices++;
  if (n == group.barriers.size()) {
    group.barriers.push_back(std::make_shared<lsa_barriers>());
    group.barriers[n]->use.arrivals.assign(static_cast<std::size_t>(needs->lsaBarrierCount),
                                           std::vector<int>(static_cast<std::size_t>(group.size), 0));
    all_devices.push_back(group.barriers[n]);
  }
  if (group.barriers[n]->use.arrivals.size() != static_cast<std::size_t>(needs->lsaBarrierCount))
    return ncclInvalidArgument;
  std::memset(static_cast<void*>(made), 0, sizeof *made);
  ++open_devices;
  ++comm->me->open_devices;
  return goes_on(*comm->me, [made, rank = comm->me->rank, size = group.size, barriers = group.barriers[n].get()] {
    made->rank = rank;
    made->nRanks = size;
    made->resourceWindow = reinterpret_cast<ncclWindow_t>(barriers);
  });
}
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t*) {
  if (const auto planned = count("ncclDevCommDestroy"); planned != ncclSuccess) return planned;
  const std::lock_guard lock(big);
  --open_devices;
  --comm->me->open_devices;
  return ncclSuccess;
}
#endif
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const auto planned = count("ncclCommFinalize"); planned != ncclSuccess) return planned;
  const std::lock_guard lock(big);
  comm->me->finalized = true;
  return taken_over(*comm->me);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  count("ncclCommDestroy");
  locked([] { --living; });
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  count("ncclCommAbort");
  locked([&] {
    std::erase_if(registered, [&](const auto& r) { return r.second.of == comm->me.get(); });
    open_devices -= static_cast<int>(comm->me->open_devices);
    for (const auto& device : comm->me->group->barriers) device->dead = true;
  });
  if (depth > 0) {  // NCCL puts it off to the end of the group, and forgets it if the group has failed
    count("ncclCommAbort in a group");
    locked([&] { comm->me->aborted = comm->me->group->dead = true; });
    changed.notify_all();
    return ncclSuccess;
  }
  locked([&] { comm->me->aborted = comm->me->group->dead = true; });  // the others' calls never end
  changed.notify_all();
  {
    std::unique_lock lock(comm->me->using_it);
    comm->me->used.wait(lock, [&] { return comm->me->uses == 0; });
  }
  locked([] { --living; });
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* n) {
  *n = comm->me->group->size;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  const std::lock_guard lock(big);
  if (comm->me->in_progress > 0) return ncclInvalidArgument;
  *device = comm->me->device;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->me->rank;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSystemError       ? "unhandled system error"
         : result == ncclRemoteError     ? "remote process exited or there was a network error"
         : result == ncclInvalidUsage    ? "invalid usage"
         : result == ncclInvalidArgument ? "invalid argument"
                                         : "another error";
}
const char* ncclGetLastError(ncclComm_t) {
  return "what the double said last";
}

ncclResult_t ncclGroupStart() {
  if (const auto planned = count("ncclGroupStart"); planned != ncclSuccess) return planned;
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  const auto planned = count("ncclGroupEnd");
  if (--depth > 0) return ncclSuccess;
  std::vector<enqueued> ops = std::exchange(group_ops, {});
  if (planned != ncclSuccess) return planned;
  const std::vector<enqueued> all = ops;
  launch(std::move(ops));
  ncclResult_t result = ncclSuccess;
  const std::lock_guard lock(big);
  for (const enqueued& e : all)
    if (taken_over(*e.what.who) == ncclInProgress) result = ncclInProgress;
  return result;
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return call("ncclBroadcast", kind::broadcast, from, to, n, type, ncclSum, root, comm, stream);
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return call("ncclAllReduce", kind::all_reduce, from, to, n, type, op, 0, comm, stream);
}
ncclResult_t ncclReduce(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return call("ncclReduce", kind::reduce, from, to, n, type, op, root, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return call("ncclReduceScatter", kind::reduce_scatter, from, to, n, type, op, 0, comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return call("ncclAllGather", kind::all_gather, from, to, n, type, ncclSum, 0, comm, stream);
}
ncclResult_t ncclAlltoAll(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return call("ncclAlltoAll", kind::all_to_all, from, to, n, type, ncclSum, 0, comm, stream);
}
ncclResult_t ncclSend(const void* from, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call("ncclSend", kind::send, from, nullptr, n, type, ncclSum, peer, comm, stream);
}
ncclResult_t ncclRecv(void* to, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call("ncclRecv", kind::recv, nullptr, to, n, type, ncclSum, peer, comm, stream);
}

}  // extern "C"
