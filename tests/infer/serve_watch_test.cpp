#include <heddle/infer/serve/request_queue.hpp>
#include <heddle/infer/serve/watch.hpp>

#include "catch.hpp"

#include <chrono>
#include <string>
#include <thread>

namespace hd = heddle;
namespace inf = heddle::infer;

TEST_CASE("a watched engine's statistics say which conditions hold", "[infer][serve][conditions]") {
  inf::request_queue queue;
  inf::serve_watch watch(queue,
                         {.most_running = 8, .print = false, .rule = {.skipped = 1, .learned = 5}, .root = "/nothing"});
  inf::engine_counts counts;
  // Six requests a window, rows mostly full; then none come any more.
  const auto window = [&](int requests, int running, int rows) {
    counts.submitted += requests;
    counts.running = running;
    counts.steps += 10;
    counts.rows += 10 * rows;
    queue.publish(counts);
    watch.tick(1);
    return queue.statistics().to_text("m", 0);
  };
  CHECK(queue.statistics().to_text("m", 0).find("heddle:condition") == std::string::npos);
  std::string text;
  for (int w = 0; w < 10; ++w) text = window(6, 6, 6);
  CHECK(text.find("# TYPE heddle:condition gauge\n") != std::string::npos);
  CHECK(text.find("heddle:condition{model_name=\"m\",name=\"ingress_starvation\"} 0\n") != std::string::npos);
  CHECK(text.find("early_finish") != std::string::npos);
  CHECK(text.find("egress_loss") == std::string::npos);  // not seen here
  for (int w = 0; w < 3; ++w) text = window(1, 2, 2);
  CHECK(text.find("heddle:condition{model_name=\"m\",name=\"ingress_starvation\"} 1\n") != std::string::npos);
  CHECK(text.find("name=\"admission_burst\"} 0\n") != std::string::npos);
  for (int w = 0; w < 3; ++w) text = window(6, 6, 6);
  CHECK(text.find("name=\"ingress_starvation\"} 0\n") != std::string::npos);
}

TEST_CASE("the watch of an engine runs on a thread of its own and ends at once", "[infer][serve][conditions]") {
  inf::request_queue queue;
  inf::serve_watch watch(queue, {.period = std::chrono::milliseconds(1), .print = false});
  watch.start();
  std::string text;
  for (int i = 0; i < 10'000 && text.find("heddle:condition") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    text = queue.statistics().to_text("m", 0);
  }
  watch.stop();
  CHECK(text.find("name=\"ingress_starvation\"} 0\n") != std::string::npos);
  CHECK(watch.book().windows() > 0);
  inf::serve_watch slow(queue, {.period = std::chrono::hours(1)});
  slow.start();
  slow.stop();
  CHECK_THROWS_WITH(inf::serve_watch(queue, {.period = std::chrono::milliseconds(0)}),
                    "heddle: infer::serve_watch needs a positive period, got 0 ms");
}
