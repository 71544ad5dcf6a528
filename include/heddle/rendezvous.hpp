// heddle/rendezvous.hpp: rendezvous of processes, and control messages over it.
#pragma once

#include <heddle/rendezvous/communicator.hpp>
#include <heddle/rendezvous/control.hpp>
#include <heddle/rendezvous/control_state.hpp>
#include <heddle/rendezvous/file.hpp>
#include <heddle/rendezvous/memory.hpp>
#include <heddle/rendezvous/rendezvous.hpp>
#include <heddle/rendezvous/tcp.hpp>
#include <heddle/rendezvous/tcp_socket.hpp>
#include <heddle/rendezvous/tcp_table.hpp>
