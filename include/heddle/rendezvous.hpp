// heddle/rendezvous.hpp: how processes find one another, and the messages they exchange by it.
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
