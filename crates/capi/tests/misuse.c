/* What a caller can do wrong, and what many threads may do at the same time: misuse PORT */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standfast.h"

#define MUST(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); exit(1); } } while (0)

static standfast *announcer;

static void *report(void *unused) {
    (void)unused;
    for (int i = 0; i < 20000; i++) MUST(standfast_report(announcer, true, NULL) == STANDFAST_OK);
    return NULL;
}

int main(int argc, char **argv) {
    char error[512];
    MUST(argc == 2);
    MUST(strchr(standfast_version(), '.'));

    /* Nothing. */
    MUST(standfast_builder_peer(NULL, "192.0.2.1", 64512) == STANDFAST_INVALID);
    MUST(standfast_report(NULL, true, NULL) == STANDFAST_INVALID);
    MUST(standfast_share(NULL, 1) == STANDFAST_INVALID);
    MUST(standfast_drain(NULL, 1, NULL) == STANDFAST_INVALID);
    MUST(!standfast_is_draining(NULL));
    MUST(!standfast_connection_begin(NULL));
    MUST(!standfast_start(NULL, error, sizeof error) && strstr(error, "no builder"));
    standfast_builder_free(NULL);
    standfast_connection_end(NULL);
    standfast_free(NULL);

    /* In a wrong order, and texts that are none. */
    standfast_builder *builder = standfast_builder_new(0);
    MUST(standfast_builder_peer_port(builder, 179) == STANDFAST_INVALID);
    MUST(standfast_builder_vip_prefix(builder, "198.51.100.10/32") == STANDFAST_INVALID);
    MUST(standfast_builder_vip(builder, NULL) == STANDFAST_INVALID);
    MUST(standfast_builder_vip(builder, "\xff") == STANDFAST_INVALID);
    MUST(standfast_builder_router_id(builder, "2001:db8::1") == STANDFAST_INVALID);
    MUST(standfast_builder_on_event(builder, NULL, NULL) == STANDFAST_INVALID);

    /* Everything that is wrong is told, and cut to what there is room for. */
    MUST(standfast_builder_vip(builder, "web") == STANDFAST_OK);
    MUST(standfast_builder_vip_prefix(builder, "198.51.100.10/24") == STANDFAST_OK);
    MUST(!standfast_start(builder, error, sizeof error));
    MUST(strstr(error, "cannot start") && strchr(error, '\n'));
    char small[8];
    memset(small, 'x', sizeof small);
    MUST(!standfast_start(standfast_builder_new(0), small, sizeof small));
    MUST(strlen(small) == sizeof small - 1);
    MUST(!standfast_start(standfast_builder_new(0), NULL, 0));
    builder = standfast_builder_new(64513);
    standfast_builder_free(builder);

    /* One that runs. */
    builder = standfast_builder_new(64513);
    standfast_builder_router_id(builder, "192.0.2.11");
    standfast_builder_peer(builder, "127.0.0.1", 64512);
    standfast_builder_peer_port(builder, (uint16_t)atoi(argv[1]));
    standfast_builder_vip(builder, "web");
    standfast_builder_vip_prefix(builder, "198.51.100.10/32");
    announcer = standfast_start(builder, error, sizeof error);
    if (!announcer) return fprintf(stderr, "%s\n", error), 1;
    MUST(standfast_state(announcer, "web", error, sizeof error) == STANDFAST_WITHDRAWN && error[0]);
    MUST(standfast_state(announcer, NULL, NULL, 0) == STANDFAST_WITHDRAWN);
    MUST(standfast_state(announcer, "nix", NULL, 0) == STANDFAST_REFUSED);
    MUST(standfast_report_vip(announcer, "nix", true, NULL) == STANDFAST_REFUSED);
    MUST(standfast_report_vip(announcer, "web", false, "because") == STANDFAST_OK);
    MUST(standfast_report(announcer, false, "\xff") == STANDFAST_INVALID);
    MUST(standfast_share(announcer, 40) == STANDFAST_REFUSED);
    MUST(standfast_share_vip(announcer, "web", 40) == STANDFAST_REFUSED);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) MUST(!pthread_create(&threads[i], NULL, report, NULL));
    for (int i = 0; i < 4; i++) MUST(!pthread_join(threads[i], NULL));
    standfast_connection *connection = standfast_connection_begin(announcer);
    MUST(connection);
    size_t left = 7;
    MUST(standfast_drain_begin(announcer, 100) == STANDFAST_OK && standfast_is_draining(announcer));
    MUST(standfast_drain(announcer, 100, &left) == STANDFAST_OK && left == 1);
    standfast_connection_end(connection);
    MUST(standfast_state(announcer, "web", NULL, 0) == STANDFAST_OVER);
    MUST(standfast_stop(announcer, NULL) == STANDFAST_OK);
    standfast_free(announcer);
    puts("fine");
    return 0;
}
