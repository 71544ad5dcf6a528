// tests/model/gpt_oss_ranks_test.cpp: GPT-OSS' folders, in numbers and in four bits, with experts on ranks of their own.
#include "catch.hpp"
#include "expert_folders.hpp"

#include <heddle/model/gpt_oss.hpp>

#if __has_include(<nlohmann/json.hpp>)
TEST_CASE("GPT-OSS that transformers wrote, in numbers and in four bits, with its experts on any ranks",
          "[model][gpt_oss][ranks]") {
  for (const char* name : {"gpt_oss", "gpt_oss_mxfp4"})
    expert_folders::equals_on_ranks_of_experts<heddle::model::gpt_oss<float, heddle::model::expert_parallel<>>>(name);
}
#endif
