//! What the store promises, on SQLite and on PostgreSQL: every scenario of `suite!` runs on both. Beside them stand the
//! tests of what only one of them can suffer.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

mod acquiring;
mod children;
mod egress;
mod ending;
mod execs;
mod faults;
mod keeping;
mod model;
mod records;
mod sandboxes;
mod secrets;
mod tasks;
mod tenants;
mod upgrades;
mod waiting;
mod webhooks;
mod world;

/// A test of each database for each scenario.
macro_rules! suite {
    ($($module:ident: $($scenario:ident)*;)*) => {
        mod on_sqlite {
            $($(
                #[test]
                fn $scenario() {
                    crate::world::on_sqlite(crate::$module::$scenario);
                }
            )*)*
        }

        mod on_postgresql {
            $($(
                #[test]
                fn $scenario() {
                    crate::world::on_postgresql(crate::$module::$scenario);
                }
            )*)*
        }
    };
}

suite! {
    tenants:
        a_tenant_is_made_once_and_changed_only_by_whoever_saw_it_last
        a_tenant_that_is_made_by_many_at_once_is_made_once
        a_key_is_found_by_the_hash_of_its_secret_until_it_expires_or_is_revoked
        a_template_of_its_own_goes_before_everybodys
        a_template_is_changed_only_by_whoever_saw_it_last;
    acquiring:
        a_ready_sandbox_goes_before_a_new_one
        a_preferred_sandbox_goes_before_any_other_while_it_is_free
        the_same_request_from_a_hundred_tasks_gives_one_lease
        a_request_that_changed_its_mind_is_refused
        a_request_of_another_user_is_another_request
        whoever_cannot_wait_is_told_that_it_is_full
        a_quota_is_reached_and_not_exceeded
        racing_acquirers_share_ready_sandboxes_and_never_exceed_the_room
        racing_acquirers_of_one_tenant_never_exceed_its_quota
        a_spare_sandbox_of_another_template_makes_room
        a_pool_keeps_what_it_must
        an_outdated_sandbox_is_given_to_nobody_and_makes_room
        two_servers_do_not_use_each_others_room;
    waiting:
        those_who_wait_are_served_by_fair_share
        whoever_waits_is_not_overtaken_by_the_pool
        a_lease_that_waits_gets_the_sandbox_that_was_kept_for_it
        a_sandbox_kept_for_somebody_makes_room_for_those_who_wait
        a_tenant_at_its_quota_does_not_hold_up_others
        promoting_from_many_tasks_promotes_once
        racing_acquirers_and_promoters_never_exceed_the_room;
    ending:
        a_heartbeat_moves_the_end_and_a_late_one_does_not
        a_lease_ends_once
        a_lease_that_many_release_at_once_ends_once
        expired_leases_are_ended_once_by_the_servers_that_have_them
        leases_of_a_server_that_does_not_come_back_are_ended_by_another
        a_heartbeat_and_an_expiry_that_race_agree
        a_waiting_lease_can_be_given_back
        a_sandbox_kept_for_its_user_is_given_to_nobody_else
        a_sandbox_kept_for_its_tenant_is_given_to_another_user_of_it
        a_sandbox_that_is_not_ready_is_not_kept;
    egress:
        egress_of_a_lease_is_kept_and_changed_until_it_ends;
    sandboxes:
        a_sandbox_goes_through_its_states
        whoever_saw_an_older_generation_is_refused
        a_sandbox_that_ended_takes_its_lease_with_it
        the_pool_is_filled_as_far_as_there_is_room
        what_stands_is_listed_by_node
        everything_at_once_neither_deadlocks_nor_loses_a_lease;
    execs:
        an_exec_is_begun_once_also_when_raced
        an_exec_id_for_something_else_is_refused
        no_exec_begins_when_the_lease_is_over
        the_quota_of_execs_holds_when_raced
        the_first_report_of_an_end_counts
        an_exec_is_told_of_once_by_whoever_asked_for_it
        an_exec_that_was_refused_says_why_and_counts_as_ended;
    records:
        events_count_without_gaps_also_when_raced
        a_reader_of_events_resumes_where_it_was
        the_audit_log_is_one_chain_per_node_also_when_raced
        a_changed_removed_or_cut_entry_is_noticed
        the_audit_log_is_filtered_and_paged
        a_deed_that_was_refused_leaves_nothing_behind;
    keeping:
        an_artifact_is_found_until_it_is_deleted
        an_idempotency_key_stands_for_one_thing_also_when_raced
        every_list_is_paged_without_gap_or_repetition
        what_is_old_is_forgotten_and_the_rest_is_not
        values_at_the_edge_survive
        what_belongs_to_nobody_is_refused;
    secrets:
        a_secret_is_set_rotated_and_removed
        a_change_of_a_secret_is_told_without_its_value
        secrets_of_a_tenant_are_its_own_and_in_order
        whoever_sealed_for_an_older_revision_seals_anew
        secrets_that_contradict_each_other_are_refused
        a_sealed_value_is_put_under_another_key
        a_bill_is_replaced_and_kept_as_long_as_its_lease;
    tasks:
        a_task_goes_from_pending_to_its_end_and_is_told_of
        a_task_is_made_once_under_its_idempotency_key_also_when_raced
        what_has_ended_stays_as_it_ended
        a_waiting_task_is_cancelled_at_once_and_a_running_one_is_asked
        workers_are_shared_fairly_between_conversations
        racing_schedulers_never_exceed_the_workers_and_start_each_task_once
        a_queue_of_tasks_has_an_end
        tasks_are_listed_by_conversation_and_status_newest_first
        the_first_word_of_a_worker_is_kept
        failures_in_a_row_are_told_of_once
        old_tasks_are_forgotten_and_active_ones_never
        tasks_of_another_node_are_its_own;
    webhooks:
        an_endpoint_is_registered_changed_and_removed
        the_end_of_a_task_is_told_to_each_receiver_once
        a_delivery_is_sent_by_one_server_at_a_time
        no_tenant_holds_up_the_deliveries_of_another
        a_delivery_is_tried_again_given_up_and_replayed
        a_receiver_that_is_gone_is_told_nothing_more
        deliveries_are_listed_newest_first_and_forgotten_when_they_are_old;
}
