// heddle/core/typestate.hpp: attributes by which clang follows objects that must be used up exactly once.
#pragma once

// Typestates of what must be used up exactly once: clang follows local variables of such classes and says, with `-Wconsumed`, where one ends
// that was not waited for, is waited for twice, or is used when it has been given away (`HEDDLE_CHECK_REQUESTS` of the build makes these
// errors). Nothing of the program changes. Behind references nothing is known, which is allowed wherever the second state is "unknown".
// Not for what members are initialised with by a call, as requests are: clang 19 takes the result for a temporary that ends there.
#if defined(__clang__)
/// An attribute of clang.
#define HEDDLE_STATE(...) __attribute__((__VA_ARGS__))
#else
#define HEDDLE_STATE(...)
#endif
/// Of a class whose objects must be used up: they begin unconsumed.
#define HEDDLE_CONSUMABLE HEDDLE_STATE(consumable(unconsumed))
/// Of a class whose objects may be given away: behind references, and returned by functions, they are in an unknown state.
#define HEDDLE_CAN_BE_GIVEN_AWAY HEDDLE_STATE(consumable(unknown))
/// Of a member that is called in these states only.
#define HEDDLE_CALLABLE_WHEN(...) HEDDLE_STATE(callable_when(__VA_ARGS__))
/// Of a member behind which the object is in this state.
#define HEDDLE_SETS_STATE(state) HEDDLE_STATE(set_typestate(state))
/// Of a constructor or function whose result is in this state.
#define HEDDLE_RETURNS_STATE(state) HEDDLE_STATE(return_typestate(state))
