#include "scheduler/ledger.h"

#include "base/status.h"

static unsigned below(const struct node *n)
{
    return n ? n->below : 0;
}

static void refresh(struct node *n)
{
    n->below = (uint8_t)(n->avail | below(n->left) | below(n->right));
}

void ledger_update(struct node *n)
{
    for (; n; n = n->parent) {
        uint8_t was = n->below;
        refresh(n);
        if (n->below == was)
            break;
    }
}

static void replace(struct ledger *l, struct node *parent, struct node *old, struct node *new)
{
    if (!parent)
        l->root = new;
    else if (parent->left == old)
        parent->left = new;
    else
        parent->right = new;
    if (new)
        new->parent = parent;
}

/* Lifts n above its parent. */
static void rotate_up(struct ledger *l, struct node *n)
{
    struct node *p = n->parent;
    replace(l, p->parent, p, n);
    if (p->left == n) {
        p->left = n->right;
        if (p->left)
            p->left->parent = p;
        n->right = p;
    } else {
        p->right = n->left;
        if (p->right)
            p->right->parent = p;
        n->left = p;
    }
    p->parent = n;
    refresh(p);
    refresh(n);
}

void ledger_insert(struct ledger *l, struct node *n)
{
    uint64_t x = l->salt += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64: the tree's shape depends on nothing but its history */
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    n->rank = (uint32_t)(x >> 32);
    n->left = n->right = n->parent = NULL;
    struct node **at = &l->root;
    while (*at) {
        n->parent = *at;
        at = n->span.begin < (*at)->span.begin ? &(*at)->left : &(*at)->right;
    }
    *at = n;
    n->below = n->avail;
    l->count++;
    ledger_update(n->parent);
    while (n->parent && n->parent->rank < n->rank)
        rotate_up(l, n);
}

void ledger_remove(struct ledger *l, struct node *n)
{
    while (n->left && n->right)
        rotate_up(l, n->left->rank > n->right->rank ? n->left : n->right);
    struct node *parent = n->parent;
    replace(l, parent, n, n->left ? n->left : n->right);
    for (struct node *p = parent; p; p = p->parent)
        refresh(p);
    l->count--;
}

struct node *ledger_at_or_after(const struct ledger *l, uint64_t pos)
{
    struct node *best = NULL;
    for (struct node *n = l->root; n;) {
        if (n->span.end > pos) {
            best = n;
            n = n->left;
        } else {
            n = n->right;
        }
    }
    return best;
}

struct node *ledger_find(const struct ledger *l, uint64_t pos)
{
    struct node *n = ledger_at_or_after(l, pos);
    return n && n->span.begin <= pos ? n : NULL;
}

struct node *ledger_first(const struct ledger *l)
{
    struct node *n = l->root;
    while (n && n->left)
        n = n->left;
    return n;
}

struct node *ledger_next(const struct node *n)
{
    if (n->right) {
        for (n = n->right; n->left; n = n->left)
            ;
        return (struct node *)n;
    }
    while (n->parent && n->parent->right == n)
        n = n->parent;
    return n->parent;
}

struct node *ledger_prev(const struct node *n)
{
    if (n->left) {
        for (n = n->left; n->right; n = n->right)
            ;
        return (struct node *)n;
    }
    while (n->parent && n->parent->left == n)
        n = n->parent;
    return n->parent;
}

static struct node *first_below(struct node *n, unsigned kinds)
{
    while (n && below(n) & kinds) {
        if (below(n->left) & kinds)
            n = n->left;
        else if (n->avail & kinds)
            return n;
        else
            n = n->right;
    }
    return NULL;
}

struct node *ledger_avail(const struct ledger *l, unsigned kinds, const struct node *after)
{
    if (!after)
        return first_below(l->root, kinds);
    for (;;) {
        if (below(after->right) & kinds)
            return first_below(after->right, kinds);
        while (after->parent && after->parent->right == after)
            after = after->parent;
        after = after->parent;
        if (!after)
            return NULL;
        if (after->avail & kinds)
            return (struct node *)after;
    }
}

static size_t check(const struct node *n)
{
    if (!n)
        return 0;
    BUG_IF(n->left && (n->left->parent != n || n->left->rank > n->rank), "ledger: left child of %llu",
           (unsigned long long)n->span.begin);
    BUG_IF(n->right && (n->right->parent != n || n->right->rank > n->rank), "ledger: right child of %llu",
           (unsigned long long)n->span.begin);
    BUG_IF(n->below != (uint8_t)(n->avail | below(n->left) | below(n->right)), "ledger: index of %llu",
           (unsigned long long)n->span.begin);
    return 1 + check(n->left) + check(n->right);
}

void ledger_check(const struct ledger *l)
{
    BUG_IF(check(l->root) != l->count, "ledger: count");
    const struct node *before = NULL;
    for (const struct node *n = ledger_first(l); n; n = ledger_next(n)) {
        BUG_IF(n->span.begin >= n->span.end, "ledger: empty span at %llu", (unsigned long long)n->span.begin);
        BUG_IF(before && before->span.end > n->span.begin, "ledger: spans overlap at %llu", (unsigned long long)n->span.begin);
        before = n;
    }
}
