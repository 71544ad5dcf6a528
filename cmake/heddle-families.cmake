# The units of heddle::families: stages of each family and element type in a unit of its own, runners in units of families
# that are alike, and a unit that chooses.
set(HEDDLE_KNOWN_FAMILIES gpt2_f32 llama_f32 qwen2_f32 qwen3_f32 mistral_f32 mixtral_f32 qwen3_moe_f32 smollm3_f32 granite_f32 phi3_f32 olmo2_f32 gemma3_f32 gemma2_f32 gpt_oss_f32
  deepseek_f32
  gpt2_f64 llama_f64 qwen2_f64 qwen3_f64 mistral_f64 mixtral_f64 qwen3_moe_f64 smollm3_f64 granite_f64 phi3_f64 olmo2_f64 gemma3_f64 gemma2_f64 gpt_oss_f64
  deepseek_f64)

# Adds a unit with this text to `sources`, in `folder`.
macro(heddle_family_unit name text)
  file(CONFIGURE OUTPUT "${folder}/${name}.cpp" CONTENT
    "#include <heddle/infer/family_units.hpp>\nnamespace heddle::inline v0 {\n${text}}\n")
  list(APPEND sources "${folder}/${name}.cpp")
endmacro()

#   heddle_family_sources(<out> <folder> <family>...)
#
# `all_f32` and `all_f64` are all of a type.
function(heddle_family_sources out folder)
  set(all "")
  foreach(family IN LISTS ARGN)
    if(family MATCHES "^all(_f32|_f64)$")
      set(of_type ${HEDDLE_KNOWN_FAMILIES})
      list(FILTER of_type INCLUDE REGEX "${CMAKE_MATCH_1}$")
      list(APPEND all ${of_type})
    elseif(family IN_LIST HEDDLE_KNOWN_FAMILIES)
      list(APPEND all ${family})
    else()
      list(JOIN HEDDLE_KNOWN_FAMILIES " " known)
      message(FATAL_ERROR "heddle: HEDDLE_FAMILIES has no family '${family}' (known: all_f32 all_f64 ${known})")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES all)
  set(type_f32 float)
  set(type_f64 double)
  set(sources "")
  set(listed "")
  set(groups "")
  foreach(family IN LISTS all)
    string(REGEX MATCH "^(.*)_(f..)$" matched "${family}")
    set(family ${CMAKE_MATCH_1})
    set(of_type ${CMAKE_MATCH_2})
    string(APPEND listed "HEDDLE_FAMILY_LISTED(${family}, ${type_${of_type}})\n")
    heddle_family_unit("${family}_${of_type}_stages" "HEDDLE_FAMILY_STAGES(, ${family}, ${type_${of_type}})\n")
    # Those of one attention share most of what runners are made of.
    set(group ${family}_${of_type})
    if(family MATCHES "^(llama|qwen.)$")
      set(group llama_qwen_${of_type})
    endif()
    list(APPEND groups ${group})
    string(APPEND runners_${group} "HEDDLE_FAMILY_RUNNERS(, ${family}, ${type_${of_type}})\n")
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group IN LISTS groups)
    heddle_family_unit("${group}_runners" "${runners_${group}}")
  endforeach()
  file(CONFIGURE OUTPUT "${folder}/choice.cpp" CONTENT "#include <heddle/infer/family_units.hpp>
namespace heddle::inline v0 {
${listed}const char* const model::detail::compiled_families_list = \"${all}\";
HEDDLE_FAMILY_CHOICE(float)
HEDDLE_FAMILY_CHOICE(double)
}
")
  set(${out} "${sources};${folder}/choice.cpp" PARENT_SCOPE)
endfunction()
