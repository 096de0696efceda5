"""Every condition type, condition reason and Event reason, once."""

from enum import StrEnum


class ConditionType(StrEnum):
    """Types in the `conditions` of TrainingJob, GuardPolicy and GuardIncident."""

    SUSPENDED = "Suspended"
    READY = "Ready"
    """What the run needs exists and can be reached; False says what is missing."""
    RUNNING = "Running"
    """A world trains or holds."""
    GUARDED = "Guarded"
    """Every policy the job names is in force."""
    POLICY_UNSATISFIABLE = "PolicyUnsatisfiable"
    METRIC_MISSING = "MetricMissing"
    INCIDENT_OPEN = "IncidentOpen"
    NEEDS_HUMAN = "NeedsHuman"
    PROBATION_EXTENDED = "ProbationExtended"
    """No rule fires, and yet the run does not train as before its incident; says what differs."""
    AUTOMATION_HELD = "AutomationHeld"
    """No rollback and no restart begins, because many runs have failed within minutes."""
    JOURNAL_BROKEN = "JournalBroken"
    """The run's own journal was altered or lost records: nothing is decided from it."""
    ANCHOR_PENDING = "AnchorPending"
    """The end of the journal cannot be anchored outside its bucket: what would be over waits for that."""
    CHECKPOINTS_BEHIND = "CheckpointsBehind"
    """The trainer's checkpoints do not reach the bucket as fast as they are due; says which, and why."""
    READING_BACK = "ReadingBack"
    """A Job reads checkpoints back that no other host of the run can; says which, and what it waits for."""
    DELETION_PENDING = "DeletionPending"
    """Checkpoints that nothing needs stay in the bucket, because S3 does not delete them now; says why."""
    FINISH_PENDING = "FinishPending"
    """A world has finished and is not told so for minutes; says what that waits for."""
    COMPLETE = "Complete"
    FAILED = "Failed"
    ACCEPTED = "Accepted"
    """Of a GuardPolicy: its newest generation is valid."""


class Reason(StrEnum):
    """Reasons of conditions and Events; the same word means the same thing in both."""

    # What a job waits for.
    READY = "Ready"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    INVALID_SPEC = "InvalidSpec"
    SECRET_MISSING = "SecretMissing"  # noqa: S105 - a reason, not a password
    SECRET_KEY_MISSING = "SecretKeyMissing"  # noqa: S105 - likewise
    STORE_REFUSED = "StoreRefused"
    STORE_UNAVAILABLE = "StoreUnavailable"
    SOURCE_REFUSED = "SourceRefused"
    """What `spec.resumeFrom` names cannot be continued."""
    RECONCILE_FAILED = "ReconcileFailed"
    """Something is refused, does not answer, or is a defect: nothing is decided for the run until it goes."""
    JOURNAL_BROKEN = "JournalBroken"
    ANCHOR_NOT_WRITTEN = "AnchorNotWritten"

    # Worlds.
    WORLD_STARTING = "WorldStarting"
    WORLD_STARTED = "WorldStarted"
    WORLD_RUNNING = "WorldRunning"
    WORLD_LOST = "WorldLost"
    WORLD_HUNG = "WorldHung"
    WORLD_REPLACED = "WorldReplaced"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    UNSCHEDULABLE = "Unschedulable"
    CONTAINER_NOT_STARTED = "ContainerNotStarted"

    # Policies.
    POLICIES_IN_FORCE = "PoliciesInForce"
    NO_POLICIES = "NoPolicies"
    POLICY_ACCEPTED = "PolicyAccepted"
    POLICY_INVALID = "PolicyInvalid"
    POLICY_MISSING = "PolicyMissing"
    POLICY_UNSATISFIABLE = "PolicyUnsatisfiable"
    POLICY_SATISFIABLE = "PolicySatisfiable"
    METRIC_MISSING = "MetricMissing"
    METRIC_SEEN = "MetricSeen"
    DIRECTIVE_REFUSED = "DirectiveRefused"

    # Incidents.
    RULE_OBSERVED = "RuleObserved"
    """A rule fired and may not act: Observe, Record or Notify."""
    LEVEL_SHIFT = "LevelShift"
    INCIDENT_OPENED = "IncidentOpened"
    INCIDENT_CLOSED = "IncidentClosed"
    NO_INCIDENT = "NoIncident"
    HELD = "Held"
    DIAGNOSED = "Diagnosed"
    TARGET_SELECTED = "TargetSelected"
    RESTORED = "Restored"
    RESTORE_FAILED = "RestoreFailed"
    EXTENT_FOUND = "ExtentFound"
    BATCHES_SKIPPED = "BatchesSkipped"
    PROBATION_EXTENDED = "ProbationExtended"
    RELAPSED = "Relapsed"
    CHECKPOINTS_BEHIND = "CheckpointsBehind"
    CHECKPOINT_QUARANTINED = "CheckpointQuarantined"
    READ_BACK_ORDERED = "ReadBackOrdered"
    NOT_READ_BACK = "NotReadBack"
    """A Job could not say of every checkpoint whether it is what was saved."""
    CHECKPOINT_LEFT = "CheckpointLeft"
    """It was to be deleted, and stays: for files of somebody else that lie among its own, or another run's sake."""
    NOT_DELETED = "NotDeleted"

    # A person is asked, and answers.
    PAUSED = "Paused"
    APPROVAL_REQUIRED = "ApprovalRequired"
    REQUEST_ACCEPTED = "RequestAccepted"
    REQUEST_REFUSED = "RequestRefused"
    NEEDS_HUMAN = "NeedsHuman"
    STUCK_NON_FINITE = "StuckNonFinite"

    # The breaker over all runs, and what people are told.
    BREAKER_TRIPPED = "BreakerTripped"
    BREAKER_RELEASED = "BreakerReleased"
    NOTICE_FAILED = "NoticeFailed"

    # Ends.
    FINISH_PENDING = "FinishPending"
    FINISHED = "Finished"
    COMPLETED = "Completed"
    STOPPED_BY_RULE = "StoppedByRule"
    STOPPED_BY_REQUEST = "StoppedByRequest"
    FAILED = "Failed"
    BAD_CONFIG = "BadConfig"
