# The units of heddle::families: stages and runners of each family and element type in a unit of its own, and one that chooses.
set(HEDDLE_KNOWN_FAMILIES gpt2_f32 llama_f32 qwen2_f32 qwen3_f32 mixtral_f32 deepseek_f32
  gpt2_f64 llama_f64 qwen2_f64 qwen3_f64 mixtral_f64 deepseek_f64)

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
  foreach(family IN LISTS all)
    string(REGEX MATCH "^(.*)_(f..)$" matched "${family}")
    set(family "${CMAKE_MATCH_1}, ${type_${CMAKE_MATCH_2}}")
    string(APPEND listed "HEDDLE_FAMILY_LISTED(${family})\n")
    foreach(what IN ITEMS STAGES RUNNERS)
      file(CONFIGURE OUTPUT "${folder}/${matched}_${what}.cpp" CONTENT
        "#include <heddle/infer/family_units.hpp>\nnamespace heddle::inline v0 {\nHEDDLE_FAMILY_${what}(, ${family})\n}\n")
      list(APPEND sources "${folder}/${matched}_${what}.cpp")
    endforeach()
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
