/*
 * A service that announces itself: gateway PEER PORT
 *
 *     cc -o gateway gateway.c -I../include -lstandfast
 *
 * SIGUSR1 makes it sick, SIGUSR2 well again, SIGTERM drains it.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "standfast.h"

static volatile sig_atomic_t sick, leaving;

static void on_signal(int signal) {
    if (signal == SIGTERM) leaving = 1;
    else sick = signal == SIGUSR1;
}

static void on_event(void *context, int level, const char *text) {
    (void)context;
    if (level >= STANDFAST_INFO) fprintf(stderr, "%s\n", text);
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: gateway PEER PORT\n"), 2;
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, on_signal);
    signal(SIGTERM, on_signal);

    /* Bind first: what is announced must be able to serve. */
    standfast_builder *builder = standfast_builder_new(64513);
    standfast_builder_router_id(builder, "192.0.2.11");
    standfast_builder_peer(builder, argv[1], 64512);
    standfast_builder_peer_port(builder, (uint16_t)atoi(argv[2]));
    standfast_builder_vip(builder, "web");
    standfast_builder_vip_prefix(builder, "198.51.100.10/32");
    standfast_builder_interval(builder, 100);   /* five good samples in half a second; a second each is the default */
    standfast_builder_lease(builder, 3000);     /* a wedged loop leaves by itself */
    standfast_builder_on_event(builder, on_event, NULL);
    char error[1024];
    standfast *announcer = standfast_start(builder, error, sizeof error);
    if (!announcer) return fprintf(stderr, "%s\n", error), 1;

    while (!leaving) {                          /* the loop that does the work says how it is */
        standfast_report(announcer, !sick, sick ? "told to be sick" : NULL);
        usleep(50 * 1000);
    }
    size_t left = 0;
    standfast_drain(announcer, 1000, &left);
    printf("drained, %zu connections left\n", left);
    standfast_free(announcer);
    return 0;
}
